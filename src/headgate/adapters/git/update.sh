#!/bin/sh
# Refuses refs below refs/for, refs/approved and refs/recheck that Headgate cannot take, or that would keep others from proposing,
# and refs that would keep Headgate from writing notes.
# Where `git config headgate.account` names whom Headgate pushes as, people approve and veto under their own names alone
# (refs/approvals/<who>/<branch>/<topic>, refs/vetoes/…), and refs/proposers says who pushed a proposal.
# Where `git config headgate.pages` is true, Headgate also approves for people who are logged in to its pages.
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

# Whom the server knows the pusher as: gitolite, a web server, a forced command of ssh, or the account itself.
me=${GL_USER:-${REMOTE_USER:-${HEADGATE_USER:-$(id -un)}}}
account=$(git config headgate.account) || account=

case $ref in
    refs/notes/headgate | refs/notes/headgate-review)
        [ -z "$account" ] || [ "$me" = "$account" ] || no "what people are told and say is kept there; $account alone writes it"
        exit 0
        ;;
    refs/notes/headgate/* | refs/notes/headgate-review/*)
        case $new in *[!0]*) no "no notes could be written any more; push other notes to refs/notes/<name>" ;; esac
        exit 0
        ;;
    refs/for/* | refs/approved/* | refs/recheck/* | refs/approvals/* | refs/vetoes/* | refs/proposers/*) ;;
    *) exit 0 ;;
esac
gone=
case $new in *[!0]*) ;; *) gone=yes ;; esac
kind=${ref#refs/} name=${ref#refs/*/}
kind=${kind%%/*}
push="push to refs/$kind/<branch>/<topic>"

case $kind in
    proposers)
        [ -n "$gone" ] && [ "$me" = "$account" ] || no "nobody pushes refs/proposers: they are written as changes are proposed"
        exit 0
        ;;
    approvals | vetoes)
        [ -n "$account" ] || no "this server does not know who is who; approve with refs/approved/<branch>/<topic>"
        push="push to refs/$kind/$me/<branch>/<topic>"
        who=${name%%/*} name=${name#*/}
        pages=
        [ "$kind" != approvals ] || pages=$(git config --bool headgate.pages) || pages=
        [ "$who" = "$me" ] || { [ "$me" = "$account" ] && [ "$gone$pages" != "" ] && [ "$gone$pages" != false ]; } || no "you are $me here, not $who; $push"
        ;;
esac
# Whoever may push may withdraw, even what the checks below would not let in.
[ -z "$gone" ] || exit 0

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

is=$(git cat-file -t "$new") || exit 1
[ "$is" = commit ] || no "this is a $is; push a commit"
# After a failed `git commit`, people push the head of the branch: it would be tested, and never land.
if [ "$kind" = for ] && git merge-base --is-ancestor "$new" "refs/heads/$branch" 2>/dev/null; then
    no "this commit is already in $branch; commit your change, then push again"
fi

# The hook runs before the server takes the ref; Headgate counts the proposer only if the commit is the proposal's.
if [ "$kind" = for ] && [ -n "$account" ]; then
    case $me in "" | *[!A-Za-z0-9._@+-]*) no "the name $me cannot be part of a ref; ask whoever runs this server" ;; esac
    git update-ref "refs/proposers/$me/$name" "$new" || no "that you propose this could not be written down; try again"
fi
exit 0
