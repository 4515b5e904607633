"""Models: one binding per framework, walking them into slots, and the result of a load."""
