"""What a person sees: messages as they are, and nothing where nobody looks."""

import io

from rich.console import Console

from cbsa.train.display import Display


def shown(action, **options):
    out = io.StringIO()
    with Display(Console(file=out, width=200, **options)) as display:
        action(display)
    return out.getvalue()


def test_warnings_are_not_taken_for_markup():
    """Names of files and errors of PyTorch may look like it; a closing tag without an opening one too."""
    message = "cannot read /data/[old]/[/x].jpg: [enforce fail at inline_container.cc:664] . unexpected pos"
    assert shown(lambda display: display.warn(message)) == f"Warning: {message}\n"


def test_messages_may_have_markup():
    assert (
        shown(lambda display: display.say("[bold]a model[/bold], 3 parameters")) == "a model, 3 parameters\n"
    )


def test_into_a_file_there_are_no_bars():
    def work(display):
        with display.task("Training", 3) as update:
            for step in range(3):
                update(step + 1, loss="1.0")
        display.say("done")

    assert shown(work) == "done\n"


def test_on_a_terminal_there_are():
    def work(display):
        with display.task("Training", 3) as update:
            update(2, loss="1.25")
            display._progress.refresh()

    output = shown(work, force_terminal=True)
    assert "Training" in output
    assert "2/3" in output
    assert "loss 1.25" in output


def test_without_a_console_there_is_silence(capsys):
    with Display(None) as display, display.task("Training", 3) as update:
        update(1)
        display.say("hello")
        display.warn("careful")
    assert capsys.readouterr() == ("", "")
