"""Checkpoints: named arrays, read lazily, from files that are never trusted."""

from .folder import PACKED, Folder, open_folder

__all__ = ["PACKED", "Folder", "open_folder"]
