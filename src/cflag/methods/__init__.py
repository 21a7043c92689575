"""Methods: one file each, written as the conversation between server and clients. See CONTRIBUTING.md."""
