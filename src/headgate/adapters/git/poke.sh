#!/bin/sh
# Tells Headgate that something was pushed here, so that it looks at once and not at its next poll.
# As `hooks/post-receive`, or called by it, it is given what was pushed, line by line. It refuses nothing, nobody waits
# for it, and what goes wrong is nobody's problem. It needs curl and sha256sum. In a repository, `headgate-poke try`
# waits, and prints what Headgate answers. It holds the secret that pokes are signed with: only who pushes may read it.
url= inner= outer=
LC_ALL=C
export LC_ALL

# HMAC-SHA256 of what is given, in hex. The secret is in no list of processes: the shell itself prints it.
signed() {
    digest=$({ printf %b "$inner"; printf %s "$1"; } | sha256sum)
    digest=${digest%% *} bytes=
    while [ -n "$digest" ]; do
        rest=${digest#??}
        bytes="$bytes\\0$(printf %03o "0x${digest%"$rest"}")"
        digest=$rest
    done
    digest=$({ printf %b "$outer"; printf %b "$bytes"; } | sha256sum)
    echo "${digest%% *}"
}

# Further words are options of curl.
poke() {
    repository=${GL_REPO:-$(pwd -P)}
    case $repository in *[[:cntrl:]]*) return 1 ;; esac
    name=$(printf %s "$repository" | sed 's/[\\"]/\\&/g')
    body="{\"repository\":\"$name\",\"at\":$(date +%s),\"id\":\"$$\"}"
    curl -sS --proto =http,https --connect-timeout 5 --max-time 15 -H 'Content-Type: application/json' \
        -H "X-Hub-Signature-256: sha256=$(signed "$body")" --data-binary "$body" "$@" "$url"
}

if [ "${1-}" = try ]; then
    poke
    exit
fi
worth=
while read -r old new ref; do
    # Headgate pushes its notes itself; a poke for each would make it look at its own doings.
    case $ref in refs/notes/*) ;; *) worth=yes ;; esac
done
if [ -n "$worth" ]; then
    (
        # The pusher's ssh connection ends as soon as the hook returns; the poke must survive that.
        trap '' HUP
        poke -f
    ) < /dev/null > /dev/null 2>&1 &
fi
exit 0
