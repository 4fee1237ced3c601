"""monky-deployd: makes a Docker Compose host match what the tenancy service says."""

__version__ = "0.1.0"
