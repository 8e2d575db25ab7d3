"""The guided run behind ``probtx tour``."""
