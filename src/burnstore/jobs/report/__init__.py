"""Reports: a file of tensors, or the difference of two, as one page to look at in a browser.

profile    of every tensor, in one pass over its values: statistics, histogram, outliers
evidence   what says whose layout the tensors have
report     all of it as data, and as a page
page       the page's own files, assembled
"""

from __future__ import annotations

from .report import Report, report

__all__ = ["Report", "report"]
