__version__ = "0.2.0"  # major and minor must equal the library's
