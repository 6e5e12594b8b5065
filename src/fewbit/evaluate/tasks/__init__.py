"""The axis of tasks: choices and short answers, built in or from files."""
