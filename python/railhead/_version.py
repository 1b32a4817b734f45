__version__ = "0.2.0"  # its major and minor are those of the library it works with
