#!/bin/sh
# Usage: record-deployment.sh LOG_URL NAMESPACE SERVICE -- COMMAND…
# Run COMMAND, record it in the shared log, and push the record. Exit with COMMAND's code, or 70 if the record was lost.
set -eu
url=$1 ns=$2 service=$3
shift 3
[ "$1" = "--" ] && shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ropewalk clone --bare "$url" "$folder/log.git" >&2
code=0
ROPEWALK_REPO="$folder/log.git" ropewalk shiplog run --ns "$ns" --service "$service" \
    --artifact "${ARTIFACT:-unknown}" --pipeline "${PIPELINE:-unknown}" ${RUN_URL:+--run-url "$RUN_URL"} -- "$@" || code=$?
ROPEWALK_REPO="$folder/log.git" ropewalk push >&2 || exit 70
exit "$code"
