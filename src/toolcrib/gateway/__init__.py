"""Clients of both protocol eras → identity → listing or call → bytes, over HTTP and over the bridge's pipe."""
