"""Use an inventory from programs of your own: `Stock` searches, changes, watches, and leases machines."""

from headgate.stock.client import Stock, StockRefused

__all__ = ["Stock", "StockRefused"]
