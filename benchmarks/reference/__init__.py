"""Reference posteriors of attention, with exact draws, and how near samplers and guides come to them."""
