"""The engine for many machines: Flower carries the questions (`pip install cflag[flower]`)."""
