"""One module for each thing outside this process: tenancy, OpenBao, the engine, Compose."""
