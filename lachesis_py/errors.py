"""Errors that are meant for people: the message names the place and the remedy, the CLI exits with 2."""

from __future__ import annotations


class LachesisError(Exception):
    """Something the user can put right. Shown without a traceback."""

    exit_code = 2
