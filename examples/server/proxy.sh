#!/usr/bin/env bash
# Puts three servers behind HAProxy under load, by deploy/haproxy.cfg: first all three, of which one is slower, with their
# weights and then by turns (round robin); then one is killed while requests come, and one is drained. Fails if a request is lost. Needs `haproxy` (Debian's package) and curl. The programs are built before:
#
#   cargo build --release -p weirpool-server -p weirpool-cli
#   examples/server/proxy.sh
#
# RATE requests arrive in each of SECONDS_EACH seconds. Arguments are options of the servers.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
programs=${PROGRAMS:-${CARGO_TARGET_DIR:-$root/target}/release}
each=${SECONDS_EACH:-15}
rate=${RATE:-40}
base=${PORT:-8200}
export NO_COLOR=1
folder=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT

export PROXY=127.0.0.1:$base
for number in 1 2 3; do
  export "SERVER_$number=127.0.0.1:$((base + number))" "AGENT_$number=$((base + 10 + number))"
done

# begin NUMBER: starts a server. The third takes four times as long for everything.
declare -A server
begin() {
  local slowdown=20
  [ "$1" != 3 ] || slowdown=80
  "$programs/weirpool-server" --listen "127.0.0.1:$((base + $1))" --agent "127.0.0.1:$((base + 10 + $1))" \
    --slowdown "$slowdown" "${options[@]}" 2>>"$folder/server-$1" &
  server[$1]=$!
}

# ready COUNT: waits until the proxy sends requests to that many servers.
ready() {
  local tries=0
  until [ "$(echo 'show stat' | python3 -c '
import socket, sys
link = socket.socket(socket.AF_UNIX); link.connect(sys.argv[1]); link.sendall(sys.stdin.buffer.read())
text = b"".join(iter(lambda: link.recv(65536), b"")).decode()
rows = [row.split(",") for row in text.splitlines() if row.startswith("servers,") and "BACKEND" not in row]
print(sum(row[17].startswith("UP") for row in rows))' "$folder/socket")" = "$1" ]; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "the proxy has not $1 servers" >&2; cat "$folder"/*; exit 1; }
    sleep 0.1
  done
}

proxy() {
  haproxy -db -f "$1" -f "$folder/statistics.cfg" >"$folder/proxy" 2>&1 &
  proxy=$!
  ready 3
}

# load NAME [option...]: fails if a request has no answer of a server, or half of one.
load() {
  local name=$1
  shift
  echo "==> $name"
  "$programs/weirpool" load "http://$PROXY" --prompt-tokens 16..128 --max-tokens 8..64 --shared-prefix 0.5 \
    --rate "$rate" --duration "${each}s" "$@" | tee "$folder/report"
  if grep -E '^ends .*(broken|timed out|transport error|unsent|without retry after)' "$folder/report" >/dev/null; then
    echo "requests were lost" >&2
    return 1
  fi
}

options=("$@")
printf 'global\n  stats socket %s/socket\n' "$folder" >"$folder/statistics.cfg"
sed -E 's/ agent-check agent-inter [0-9a-z]+//; s/ agent-port [^ ]+//' "$root/deploy/haproxy.cfg" >"$folder/turns.cfg"
for number in 1 2 3; do begin $number; done

proxy "$folder/turns.cfg"
load "by turns"
kill $proxy; wait $proxy || true
proxy "$root/deploy/haproxy.cfg"
load "by expected wait"

# Whole answers: the proxy sends a request that the killed server did not answer to another one.
load "by expected wait, while one is killed and begins again" --whole &
loading=$!
sleep "$((each / 3))"
kill -9 "${server[1]}"
sleep "$((each / 3))"
begin 1
wait $loading
ready 3
# Streams: a server that is drained completes its own.
load "by expected wait, while one is drained and begins again" &
loading=$!
sleep "$((each / 3))"
kill -TERM "${server[2]}"
# A server fails if memory is missing.
wait "${server[2]}" || { cat "$folder/server-2"; exit 1; }
begin 2
wait $loading
ready 3
for number in 1 2 3; do
  kill -TERM "${server[$number]}"
  wait "${server[$number]}" || { cat "$folder/server-$number"; exit 1; }
done
