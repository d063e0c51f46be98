# Everything said to a person goes to standard error; standard output is for what was asked for.

say() { echo "$*" >&2; }
fail() { say "error: $*"; exit 1; }
