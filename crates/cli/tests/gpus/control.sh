#!/bin/sh
# Stands in for nvidia-cuda-mps-control: -f is the daemon, -d the daemon in the background, and without a word it is the
# front end, which reads commands. STAND_IN says what is wrong with it; NOTES is where daemon and server put their
# process numbers.
pipes=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
case "$1" in
-d)
    setsid "$0" -f </dev/null >/dev/null 2>&1 &
    ;;
-f)
    echo "daemon $$" >>"$NOTES"
    echo "sees ${CUDA_VISIBLE_DEVICES-everything}" >>"$NOTES"
    echo "logs ${CUDA_MPS_LOG_DIRECTORY-nowhere}" >>"$NOTES"
    case "$STAND_IN" in
    broken)
        echo "Failed to start: no permission" >&2
        exit 1
        ;;
    mute) exec sleep 600 ;;
    esac
    mkfifo "$pipes/control"
    exec 3<>"$pipes/control"
    sleep 600 &
    server=$!
    echo "server $server" >>"$NOTES"
    echo $$ >"$pipes/nvidia-cuda-mps-control.pid"
    while read -r command <&3; do
        case "$command" in
        quit)
            [ "$STAND_IN" = deaf ] && continue
            kill $server
            echo "quit" >>"$NOTES"
            exit 0
            ;;
        esac
    done
    ;;
*)
    if ! kill -0 "$(cat "$pipes/nvidia-cuda-mps-control.pid" 2>/dev/null)" 2>/dev/null; then
        echo "Cannot find MPS control daemon process"
        exit 1
    fi
    while read -r command; do
        echo "$command" >"$pipes/control"
    done
    ;;
esac
