"""Converting: from files of one format and layout to another, with a receipt of what was done."""
