"""The version of the package. It stands here because modules below `clearhead` must not import `clearhead`."""

__version__ = "0.1.0"
