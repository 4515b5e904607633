"""``python -m burnstore``: the command line."""

from __future__ import annotations

if __name__ == "__main__":
    try:
        from burnstore.cli import command

        command()
    except KeyboardInterrupt:  # before the command could handle it
        raise SystemExit(130) from None
