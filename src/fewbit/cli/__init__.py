"""The command line: one small file a command, registered in `app`."""
