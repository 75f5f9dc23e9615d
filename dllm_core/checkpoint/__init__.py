"""Checkpoints: named arrays, read lazily, from files that are never trusted."""

from .folder import Folder, open_folder

__all__ = ["Folder", "open_folder"]
