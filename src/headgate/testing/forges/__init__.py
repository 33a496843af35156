"""Provide forges to test against: real servers on this machine, with real repositories behind them."""
