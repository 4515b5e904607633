"""``burnstore completion``: print the script with which a shell completes verbs, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .arguments import add_options
from .errors import OK
from .parser import VERBS, VerbParser, build_parser
from .text import print_json

DESCRIPTION = """\
Print the completion script for a shell: verbs, options and their choices. The shell completes file names itself. The
script is made for this version and calls no program while you type.
"""

EXAMPLES = """\
examples:
  burnstore completion bash > ~/.local/share/bash-completion/completions/burnstore
  burnstore completion zsh > ~/.zfunc/_burnstore         a folder of your $fpath
  burnstore completion fish > ~/.config/fish/completions/burnstore.fish
  eval "$(burnstore completion bash)"                    for this shell only

exit codes:
  0  ok
  2  an error: wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    add_options(parser, "json")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    verbs = [_Verb.of(name, parser) for name, parser in _parsers()]
    script = "\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](verbs))
    if arguments.json:
        print_json({"script": script})
    else:
        print(script)
    return OK


@dataclass(frozen=True, slots=True)
class _Option:
    """An option: its spellings, help, and value: none, a choice, a file name, or text."""

    flags: Sequence[str]
    help: str
    takes_value: bool
    choices: Sequence[str]
    is_file: bool


@dataclass(frozen=True, slots=True)
class _Verb:
    """A verb with its options, and the choices of its first argument."""

    name: str
    options: Sequence[_Option]
    choices: Sequence[str]

    @classmethod
    def of(cls, name: str, parser: argparse.ArgumentParser) -> _Verb:
        formatter = parser._get_formatter()
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        options = [
            _Option(
                action.option_strings,
                formatter._expand_help(action),
                action.nargs != 0,
                [str(choice) for choice in action.choices or ()],
                action.type is None,
            )
            for action in actions
            if action.option_strings
        ]
        positional = next((action for action in actions if not action.option_strings), None)
        choices = [] if positional is None else [str(choice) for choice in positional.choices or ()]
        return cls(name, options, choices)


def _parsers() -> Iterator[tuple[str, VerbParser]]:
    subparsers = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, parser in subparsers.choices.items():
        parser.load()
        yield name, parser


def _flags(verb: _Verb) -> str:
    return " ".join(flag for option in verb.options for flag in option.flags)


def _bash(verbs: Sequence[_Verb]) -> Iterator[str]:
    yield "# Completion of burnstore for bash."
    yield "_burnstore() {"
    yield '    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb="" words="" at'
    yield "    # bash splits --sort=name into three words"
    yield '    if [[ $cur == "=" ]]; then cur=""; elif [[ $prev == "=" ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi'
    yield "    for ((at = 1; at < COMP_CWORD; at++)); do"
    yield "        if [[ ${COMP_WORDS[at]} != -* ]]; then verb=${COMP_WORDS[at]}; break; fi"
    yield "    done"
    yield '    case "$verb $prev" in'
    for verb in verbs:
        for option in verb.options:
            if option.takes_value:
                spellings = "|".join(f'"{verb.name} {flag}"' for flag in option.flags)
                yield f'        {spellings}) words="{" ".join(option.choices)}" ;;'
    yield "        *)"
    yield '            case "$verb" in'
    yield f'                "") words="--help --version {" ".join(verb.name for verb in verbs)}" ;;'
    for verb in verbs:
        always = f' else words="{" ".join(verb.choices)}";' if verb.choices else ""
        yield f'                {verb.name}) if [[ $cur == -* ]]; then words="{_flags(verb)}";{always} fi ;;'
    yield "            esac ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o bashdefault -o default -F _burnstore burnstore"


def _zsh(verbs: Sequence[_Verb]) -> Iterator[str]:
    yield "#compdef burnstore"
    yield "# Completion of burnstore for zsh."
    yield "_burnstore() {"
    yield "    local context state line"
    yield "    local -a verbs"
    yield "    verbs=("
    for name, summary in VERBS.items():
        yield f"        {_quoted(f'{name}:{_zsh_text(summary)}')}"
    yield "    )"
    yield "    _arguments -C '(-h --help)'{-h,--help}'[show the help and exit]' \\"
    yield "        '--version[show the version and exit]' '1:verb:->verb' '*::argument:->argument'"
    yield "    case $state in"
    yield "        verb) _describe verb verbs ;;"
    yield "        argument)"
    yield "            case $words[1] in"
    for verb in verbs:
        yield f"                {verb.name})"
        yield "                    _arguments \\"
        for option in verb.options:
            for flag in option.flags:
                yield f"                        {_zsh_option(flag, option)} \\"
        rest = f"1:value:({' '.join(verb.choices)})" if verb.choices else "*:file:_files"
        yield f"                        {_quoted(rest)} ;;"
    yield "            esac ;;"
    yield "    esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _burnstore ]]; then _burnstore "$@"; else compdef _burnstore burnstore; fi'


def _zsh_option(flag: str, option: _Option) -> str:
    value = ""
    if option.takes_value:
        values = f"({' '.join(option.choices)})" if option.choices else "_files" if option.is_file else " "
        value = f":value:{values}"
    # Options with a value may be repeated, because some accumulate.
    repeated = "*" if option.takes_value else ""
    return _quoted(f"{repeated}{flag}[{_zsh_text(option.help)}]{value}")


def _zsh_text(text: str) -> str:
    for special in "\\[]:":
        text = text.replace(special, f"\\{special}")
    return text


def _fish(verbs: Sequence[_Verb]) -> Iterator[str]:
    yield "# Completion of burnstore for fish."
    first = "complete -c burnstore -n __fish_use_subcommand"
    yield f"{first} -s h -l help -d 'show the help and exit'"
    yield f"{first} -l version -d 'show the version and exit'"
    for name, summary in VERBS.items():
        yield f"{first} -f -a {name} -d {_fish_quoted(summary)}"
    for verb in verbs:
        after = f"complete -c burnstore -n '__fish_seen_subcommand_from {verb.name}'"
        if verb.choices:
            yield f"{after} -f -a '{' '.join(verb.choices)}'"
        for option in verb.options:
            spelled = " ".join(f"-l {flag[2:]}" if flag[:2] == "--" else f"-s {flag[1:]}" for flag in option.flags)
            value = ""
            if option.choices:
                value = f" -x -a '{' '.join(option.choices)}'"
            elif option.takes_value:
                value = " -r" if option.is_file else " -x"
            yield f"{after} {spelled}{value} -d {_fish_quoted(option.help)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
