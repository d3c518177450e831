#!/usr/bin/env bash
# Puts the server under load: 1, 8 and 64 clients, clients that go and readers that are slow, then twice the capacity;
# then a quiet tenant beside one that floods and one that sends at recorded times (of the file ARRIVALS, or at random);
# then twice the capacity for a server whose requests fail and are sent again, and for one that splits its memory.
# Arguments are options of the server. The programs are built before:
#
#   cargo build --release -p weirpool-server -p weirpool-cli      # with --features weirpool-server/cuda for a GPU
#   examples/server/load.sh
#   SECONDS_EACH=15 SECONDS_OVERLOAD=600 examples/server/load.sh --device cuda ...
#
# QUOTA is the memory of each tenant but the quiet one. SECONDS_COMPARED is the time for each of the last two; the default
# is that of the overload. The script fails if a request is lost, if one of the quiet tenant is refused, if memory is
# missing at the end, or if the server does not shut down in order.
set -euo pipefail
programs=${PROGRAMS:-${CARGO_TARGET_DIR:-$(dirname "$0")/../../target}/release}
address=${ADDRESS:-127.0.0.1:8087}
each=${SECONDS_EACH:-3}
overload=${SECONDS_OVERLOAD:-6}
compared=${SECONDS_COMPARED:-$overload}
lengths=(--prompt-tokens "${PROMPT_TOKENS:-16..128}" --max-tokens "${MAX_TOKENS:-8..64}" --shared-prefix 0.5)
export NO_COLOR=1
log=$(mktemp)
report=$(mktemp)
tenants=$(mktemp)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$log" "$report" "$tenants"' EXIT
{
  echo 'operator_key = "operator"'
  for name in greedy bursty quiet; do printf '[[tenants]]\nname = "%s"\nkey = "%s"\n' $name $name; done |
    sed "/^name = .[gb]/a quota = \"${QUOTA:-6MiB}\""
} >"$tenants"

begin() {
  "$programs/weirpool-server" --listen "$address" "$@" 2>"$log" &
  server=$!
  until curl --silent --fail "http://$address/readyz" >/dev/null; do
    kill -0 "$server" 2>/dev/null || { cat "$log"; exit 1; }
    sleep 0.1
  done
}

# Fails if a request has no answer, or half of one that its deadline did not cut off.
load() {
  "$programs/weirpool" load "http://$address" "${lengths[@]}" "$@" | tee "$report"
  if grep -E '^ends .*(broken|timed out|transport error|unsent)' "$report" >/dev/null; then
    echo "requests were lost" >&2
    return 1
  fi
}

end() {
  curl --silent --header "Authorization: Bearer operator" "http://$address/metrics" |
    grep -E '^(weirpool_(waits_total|rejections_total|evictions_total)|server_(requests|answers|.*_tokens)_total|server_memory)' |
    grep -v ' 0$' | sort
  kill -TERM "$server"
  # The server fails if memory is missing.
  wait "$server" || { cat "$log"; exit 1; }
  tail -n 1 "$log"
}

begin "$@"
for clients in 1 8 64; do
  echo "==> $clients clients"
  load --clients "$clients" --duration "${each}s"
done
echo "==> 64 clients, of which some go and some read slowly"
load --clients 64 --duration "${each}s" --abandon 0.3 --slow 0.1
# Requests per second at 64 clients.
capacity=$(load --clients 64 --duration "${each}s" --json | grep -oE '"done":[0-9]+' | cut -d: -f2)
rate=$(awk "BEGIN { print 2 * $capacity / $each }")
echo "==> twice the capacity: $rate requests per second for $overload s"
load --rate "$rate" --duration "${overload}s"
end
begin "$@" --config "$tenants"
arrivals=("${lengths[@]}" --rate "$rate")
[ -z "${ARRIVALS:-}" ] || arrivals=(--arrivals "$ARRIVALS" --speed "${SPEED:-100}" --prompt-tokens 1..128 --max-tokens 1..64)
others=$(mktemp)
"$programs/weirpool" load "http://$address" "${lengths[@]}" --key greedy --clients 256 --duration "${each}s" >/dev/null &
flood=$!
"$programs/weirpool" load "http://$address" --key bursty "${arrivals[@]}" --duration "${each}s" >"$others" &
recorded=$!
sleep 0.5
echo "==> a quiet tenant beside one with 256 clients and one with ${arrivals[*]}"
load --key quiet --clients 1 --duration "$((each - 1))s"
if grep -E '^ends .*refused' "$report" >/dev/null; then
  echo "requests of the quiet tenant were refused" >&2
  exit 1
fi
wait "$flood" "$recorded"
echo "==> the tenant with ${arrivals[*]}"
cat "$others"
rm "$others"
end
echo "==> the same, but requests fail if memory is short, and clients send them again"
begin "$@" --admission fail
load --rate "$rate" --duration "${compared}s" --retry backoff
end
echo "==> the same, but each request takes memory for the whole context"
begin "$@" --admission split
load --rate "$rate" --duration "${compared}s"
end
