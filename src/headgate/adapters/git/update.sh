#!/bin/sh
# Refuses refs below refs/for, refs/approved and refs/recheck that Headgate cannot take, or that would keep others from proposing.
# As `hooks/update` of a bare repository it is run for each ref of a push, with its name, its old and its new object.
ref=$1 new=$3
LC_ALL=C
export LC_ALL

no() {
    echo "Headgate: $1" >&2
    exit 1
}

levels() {
    printf %s "$1" | tr -cd / | wc -c
}

case $ref in
    refs/for/* | refs/approved/* | refs/recheck/*) ;;
    *) exit 0 ;;
esac
case $new in *[!0]*) ;; *) exit 0 ;; esac # it goes
kind=${ref#refs/} name=${ref#refs/*/}
push="push to refs/${kind%%/*}/<branch>/<topic>"

case $name in *[!\ -~]*) no "a topic has letters, digits and signs of ASCII only; choose another one" ;; esac
[ ${#name} -le 400 ] && [ "$(levels "$name")" -le 40 ] || no "the name is too long; choose a shorter topic"

# Of <branch>/<topic> the branch is the longest one there is.
branch=$name topic=
while :; do
    case $branch in */*) ;; *) no "$name: there is no such branch, or no topic; $push" ;; esac
    topic=${branch##*/}${topic:+/$topic} branch=${branch%/*}
    git show-ref --verify --quiet "refs/heads/$branch" && break
done
[ ${#topic} -le 200 ] && [ "$(levels "$topic")" -lt 20 ] ||
    no "a topic has at most 20 levels and 200 bytes; choose a shorter one"

kind=$(git cat-file -t "$new") || exit 1
[ "$kind" = commit ] || no "this is a $kind; push a commit"
