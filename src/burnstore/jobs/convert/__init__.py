"""Convert files into another format or layout, with receipts."""

from __future__ import annotations

from .receipt import Receipt, ReceiptCheck, check_receipt, read_receipt

__all__ = ["Receipt", "ReceiptCheck", "check_receipt", "read_receipt"]
