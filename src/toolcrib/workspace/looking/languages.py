"""Which language a file is written in, told by its name.

In: a file's name. Out: the language's usual name, or nothing. `structure` counts by it.
"""

from __future__ import annotations

_BY_ENDING = {
    "Assembly": "s asm",
    "C": "c h",
    "C#": "cs",
    "C++": "cc cpp cxx hh hpp hxx",
    "CSS": "css scss sass less",
    "Clojure": "clj cljs cljc",
    "Dart": "dart",
    "Elixir": "ex exs",
    "Elm": "elm",
    "Erlang": "erl hrl",
    "F#": "fs fsx",
    "Go": "go",
    "GraphQL": "graphql gql",
    "Groovy": "groovy gradle",
    "HTML": "html htm",
    "Haskell": "hs",
    "INI": "ini cfg",
    "JSON": "json jsonc json5",
    "Java": "java",
    "JavaScript": "js jsx mjs cjs",
    "Julia": "jl",
    "Jupyter": "ipynb",
    "Kotlin": "kt kts",
    "Lua": "lua",
    "Make": "mk",
    "Markdown": "md mdx",
    "Nix": "nix",
    "OCaml": "ml mli",
    "Objective-C": "m mm",
    "PHP": "php",
    "Perl": "pl pm",
    "PowerShell": "ps1 psm1",
    "Protocol Buffers": "proto",
    "Python": "py pyi pyx",
    "R": "r",
    "Ruby": "rb rake gemspec",
    "Rust": "rs",
    "SQL": "sql",
    "Scala": "scala sbt",
    "Shell": "sh bash zsh fish",
    "Svelte": "svelte",
    "Swift": "swift",
    "TOML": "toml",
    "Terraform": "tf tfvars",
    "TypeScript": "ts tsx mts cts",
    "Vue": "vue",
    "XML": "xml xsd xsl",
    "YAML": "yml yaml",
    "Zig": "zig",
    "reStructuredText": "rst",
}
_BY_NAME = {
    "cmakelists.txt": "CMake",
    "containerfile": "Dockerfile",
    "dockerfile": "Dockerfile",
    "gemfile": "Ruby",
    "gnumakefile": "Make",
    "justfile": "Just",
    "makefile": "Make",
    "rakefile": "Ruby",
}
_ENDINGS = {ending: language for language, endings in _BY_ENDING.items() for ending in endings.split()}


def language_of(name: str) -> str | None:
    name = name.lower()
    if name in _BY_NAME:
        return _BY_NAME[name]
    return _ENDINGS.get(name.rpartition(".")[2]) if "." in name else None
