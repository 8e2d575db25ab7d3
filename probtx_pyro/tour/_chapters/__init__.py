"""The chapters of the tour: one file each, with a function ``chapter`` of a `Context` that calls the public API only."""
