#!/bin/sh
# A job that builds: restores what is saved, builds the rest, saves what was built.
#
# TASKS  the tasks, separated by blanks          REMOTE  HOST/REPOSITORY of build steps, or dir:PATH
set -eu
: "${TASKS:?}" "${REMOTE:?}"
infradev=${INFRADEV:-infradev}
# shellcheck disable=SC2086
"$infradev" ci restore $TASKS --from "$REMOTE" --trust
# shellcheck disable=SC2086
"$infradev" build $TASKS
# The second job has no namespaces, so it can build nothing: keep every step.
# shellcheck disable=SC2086
"$infradev" ci save $TASKS --to "$REMOTE" --all
