# What the unit kubelet.service of the packages runs, with kubeadm's drop-in 10-kubeadm.conf. The machine runs it again when it ends.
echo $$ > /run/kubelet.pid
while [ -e /run/kubelet.stopped ]; do sleep 0.1; done
KUBELET_KUBEADM_ARGS= KUBELET_EXTRA_ARGS=
[ ! -e /var/lib/kubelet/kubeadm-flags.env ] || . /var/lib/kubelet/kubeadm-flags.env
[ ! -e /etc/default/kubelet ] || . /etc/default/kubelet
exec kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
	--config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
