#!/bin/sh
# Tells who pushes to Headgate where to look for what becomes of it: the lines that git shows after `remote:`.
# As `hooks/post-receive` of a bare repository it is given, line by line, what was pushed; it refuses nothing.
# Where people are known by name, who proposed what is gone is forgotten: here, as a push may be refused after `update`.
# `headgate-poke` beside it, where it is there, tells Headgate that something was pushed.
status= buildsets=
LC_ALL=C
export LC_ALL

# Of <branch>/<topic> the branch is the longest one there is.
topic_of() {
    branch=$1
    while :; do
        case $branch in */*) branch=${branch%/*} ;; *) return ;; esac
        if git show-ref --verify -q "refs/heads/$branch"; then
            topic=${1#"$branch"/}
            return
        fi
    done
}

topics= gone= pushed=
while read -r old new ref; do
    case $ref in refs/notes/*) ;; *) pushed=$ref ;; esac
    case $new in
        *[!0]*) ;;
        *)
            case $ref in refs/for/*) gone="$gone ${ref#refs/for/} " ;; esac
            continue
            ;;
    esac
    case $ref in
        refs/for/* | refs/approved/* | refs/recheck/*) name=${ref#refs/*/} ;;
        refs/approvals/*) name=${ref#refs/*/*/} ;;
        *) continue ;;
    esac
    topic=
    # The topic goes into an address that git prints; any other character would need encoding.
    case $name in *[!A-Za-z0-9._/-]*) ;; *) topic_of "$name" ;; esac
    topics="$topics $topic"
done
if [ -n "$gone" ] && git config headgate.account > /dev/null; then
    git for-each-ref --format='%(refname)' refs/proposers | while read -r one; do
        name=${one#refs/proposers/*/}
        case $gone in *" $name "*) git show-ref --verify -q "refs/for/$name" || git update-ref -d "$one" ;; esac
    done
fi
[ -n "$pushed" ] && [ -x "${0%/*}/headgate-poke" ] && echo "- - $pushed" | "${0%/*}/headgate-poke"
[ -n "$topics" ] && [ -n "$status" ] || exit 0
echo "Headgate: $status"
set -- $topics
[ $# -eq 1 ] && [ -n "$buildsets" ] && echo "what became of it, once it is tested: $buildsets&change=$1"
exit 0
