"""A wrong command line is one sentence and exit code 2, whatever the verb."""

import sys

import pytest

from coscap.cli.main import main


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("caption --search foo cat.jpg", "'foo' is not one of 'latent', 'beam'"),
        ("caption -n 0 cat.jpg", "-n"),
        ("caption", "PHOTO"),
        ("sample --nope", "--nope"),
        ("evaluate", "--references"),
        ("serve --port 99999999", "--port"),
        ("serve --study", "belong together"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    line: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["coscap", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("coscap: ") and told.count("\n") == 1
    assert expected in told and "Value error" not in told


def test_help_and_version_end_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--help", "--version"):
        monkeypatch.setattr(sys, "argv", ["coscap", option])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    assert "coscap 0" in capsys.readouterr().out
