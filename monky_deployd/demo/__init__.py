"""The reference tenancy server and starters for real parts: for the demo and the tests."""
