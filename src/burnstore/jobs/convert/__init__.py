"""Convert files into another format or layout, with receipts."""
