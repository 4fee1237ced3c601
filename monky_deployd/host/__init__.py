"""This machine: files, releases, the SQLite store, the grant, the journal, systemd."""
