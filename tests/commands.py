"""``cbsa`` as a user types it, in this process."""

from typer.testing import CliRunner

from cbsa.cli import app


def cbsa(*arguments):
    """Exit code and output of the command, whose errors are no traces."""
    words, terminal = [str(a) for a in arguments], {"COLUMNS": "400", "TERM": "dumb"}
    result = CliRunner().invoke(app, words, env=terminal)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def answer(*arguments):
    """Exit code and output in one line."""
    code, output = cbsa(*arguments)
    return code, one_line(output)


def succeed(*arguments):
    """Output of a command that must end well."""
    code, output = cbsa(*arguments)
    assert code == 0, output
    return output


def fail(*arguments):
    """Message, in one line, of a command that must refuse what it is given."""
    code, output = answer(*arguments)
    assert code == 2, output
    assert "Traceback" not in output
    return output


def one_line(output):
    """Output without the frame and the line breaks that a terminal gives it."""
    return " ".join(output.replace("│", " ").split())
