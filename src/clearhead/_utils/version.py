"""Version of the package, in its own module because submodules must not import `clearhead`."""

__version__ = "0.2.0"
