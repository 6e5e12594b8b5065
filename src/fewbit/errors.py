"""Every exception that fewbit raises on purpose.

    FewbitError
    ├── UsageError            a flag, a value or a combination that cannot be
    ├── BadFileError          a file that is not what it claims to be
    ├── UnsupportedError      well-formed, but outside what fewbit can do (says what it can)
    ├── MissingError          a file, tensor, field or package that is not there
    ├── DownloadError         a model could not be fetched
    ├── OutputError           an output could not be written; nothing was left half-written
    ├── RequestError          one generation request cannot be served; the process goes on
    │   └── TemplateError     a chat template failed, looped or wrote too much
    ├── IdentityError         candidate and source are not the same model; a comparison is refused
    ├── NumericalError        a value that must be finite is not; says where
    ├── StoppedError          a job was stopped, and goes on when it is started again
    ├── KernelError           no kernel can run a layer; lists every reason
    └── FaultError            a broken invariant of our own

A message is one sentence: the cause, the name and value met, what to do next. `exit_code` is what
the command line ends with.
"""

from __future__ import annotations


class FewbitError(Exception):
    """Base of all errors raised on purpose; `str(error)` is meant for the user."""

    exit_code = 2


class UsageError(FewbitError):
    """A flag, a value or a combination of them that cannot be honoured."""


class BadFileError(FewbitError):
    """A file that is damaged, cut, hostile or of another kind than it claims."""


class UnsupportedError(FewbitError):
    """Well-formed input outside what fewbit supports; the message lists what is supported."""


class MissingError(FewbitError):
    """Something that the input must contain is absent."""


class DownloadError(FewbitError):
    """A model could not be fetched or did not match its hash."""


class OutputError(FewbitError):
    """An output could not be written; the old content of the target is untouched."""


class RequestError(FewbitError):
    """One generation request cannot be served; others go on."""


class TemplateError(RequestError):
    """A chat template failed, ran past its bound of work or of output, or tried to escape."""


class IdentityError(FewbitError):
    """Candidate and source differ in something that makes a comparison meaningless."""


class NumericalError(FewbitError):
    """A NaN or infinity where a finite value is required; the message locates it."""

    exit_code = 3


class StoppedError(FewbitError):
    """A job was stopped from outside after part of its work was kept; the same call goes on."""

    exit_code = 75


class KernelError(FewbitError):
    """No kernel can run a layer, or a forced one is unavailable; the message lists every reason."""


class FaultError(FewbitError):
    """An invariant of fewbit itself was broken."""

    exit_code = 70
