#!/usr/bin/env bash
# How drafting with a static cache changes with the size of the corpus, for any folder of text:
# nested corpora, a cache each, some replays each, one CSV, one figure. docs/compare-corpora.md.
#
#     scripts/compare_corpora.sh FOLDER TEXT [--sizes 25,50,100,200] [--repeat 3] [-m MODEL]
#         [-c 4096] [--draft-max 8] [--seed 1] [--out DIR] [--llama-bin DIR]
#
# Installs into .venv what it needs, unless PYTHON names a Python that has it all.
set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/venv.sh"

has_all='from importlib.util import find_spec as f; assert f("draftsmith.cli") and f("matplotlib")'
python=${PYTHON:-}
if [ -z "$python" ] || ! "$python" -c "$has_all" 2>/dev/null; then
    ensure_venv plot >&2
    python=$root/.venv/bin/python
fi
case " $* " in
*" -m "* | *" --model"* | *" -h "* | *" --help "*) ;;
*) "$python" "$root/scripts/fetch_model" >&2 ;;
esac
exec "$python" "$root/scripts/compare_corpora.py" "$@"
