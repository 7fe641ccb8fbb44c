"""One file per method: what it trains and its loss terms. A method receives features, never fetches them."""
