#!/bin/sh
# As much of systemctl as kubeadm and its documentation use, for the units kubelet and containerd.
verb= unit=
for word; do
	case $word in
	-*) ;;
	*) if [ -z "$verb" ]; then verb=$word; else unit=${word%.service}; fi ;;
	esac
done
[ -n "$unit" ] || exit 0 # daemon-reload
case $unit in kubelet | containerd) ;; *) exit 4 ;; esac

end() {
	pid=$(cat "/run/$unit.pid" 2>/dev/null) && kill "$pid" 2>/dev/null || return 0
	while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}

case $verb in
start) rm -f "/run/$unit.stopped" ;;
stop) touch "/run/$unit.stopped" && end ;;
restart) rm -f "/run/$unit.stopped" && end ;;
is-active) if [ -e "/run/$unit.stopped" ]; then echo inactive && exit 3; else echo active; fi ;;
is-enabled) echo enabled ;;
esac
