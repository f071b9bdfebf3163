#!/bin/sh
# A job that uses what another has built, in a container without namespaces and mounts: restores every step, writes
# the environment as plain files, and runs a command with it.
#
# TASK  the task     REMOTE  HOST/REPOSITORY of build steps, or dir:PATH     AT  where to write it [env]
set -eu
: "${TASK:?}" "${REMOTE:?}"
infradev=${INFRADEV:-infradev}
"$infradev" ci restore "$TASK" --from "$REMOTE" --trust --require-hit
"$infradev" --offline build "$TASK" --require-hit
eval "$("$infradev" -q env materialize "$TASK" --at "${AT:-env}")"
exec "$@"
