package v1alpha1

// Labels and annotations of a migration. On Services that belong to users replumb writes annotations only: the
// EndpointSlice controller copies a Service's labels to its EndpointSlices, so a label would cause a write per slice.
const (
	// LabelMigration, on any object that belongs to a migration, names the Migration. On Services of users it is an annotation.
	LabelMigration = "replumb.dev/migration"
	// LabelRole, on an object of replumb, says what it is for.
	LabelRole = "replumb.dev/role"

	// RoleBridge marks a Service that keeps addresses of another Service answering.
	RoleBridge = "bridge"
	// RoleHold marks an IPAddress that keeps an address from being given to someone else, and where there are no IPAddresses the Service that
	// stands for one.
	RoleHold = "hold"
	// RoleGuard marks the ValidatingAdmissionPolicy, and its binding, that keeps reserved addresses from others while API servers get another range.
	RoleGuard = "guard"
	// RoleSentinel marks the short-lived Service (and its EndpointSlice) of a barrier.
	RoleSentinel = "sentinel"
	// RoleRange marks a ServiceCIDR that a migration created.
	RoleRange = "range"

	// RoleKeep marks a ServiceCIDR that keeps addresses legitimate: of pinned Services, or of the other family.
	RoleKeep = "keep"
	// AnnotationRanges, on a ServiceCIDR that keeps the range of the other family, has all ranges of the one that this was in, in their order.
	AnnotationRanges = "replumb.dev/ranges"
	// RoleReopened marks a ServiceCIDR that re-opens a range which was put in deletion.
	RoleReopened = "reopened"
	// RoleNudge marks the throw-away Service that opens a sync window of kube-proxy.
	RoleNudge = "nudge"
	// RoleCanary marks the throw-away Service that is moved before any other.
	RoleCanary = "canary"
	// RoleProbe marks the Service, and what is behind it, that agents call all the time. It moves as any other, before any other.
	RoleProbe = "probe"
	// RoleSingle marks a second one, with one endpoint in the whole cluster: agents call it from nodes that have none.
	RoleSingle = "single"
	// RoleOverlap marks the Deployment that keeps bridges in step with their Services, and what its replicas keep.
	RoleOverlap = "overlap"
	// AnnotationInStep, on the Lease of a replica of the Deployment that keeps bridges in step, is when all bridges were last in step
	// (RFC 3339).
	AnnotationInStep = "replumb.dev/in-step"
	// AnnotationProblem, on the Lease of a replica of that Deployment, is what keeps bridges from being in step.
	AnnotationProblem = "replumb.dev/problem"
	// RoleAgent marks what agents are made of.
	RoleAgent = "agent"
	// RoleJournal marks the ConfigMaps that keep what happened in a migration, for its report.
	RoleJournal = "journal"
	// RoleArchive marks the ConfigMaps that keep reports beyond the Migrations that they are about.
	RoleArchive = "archive"
	// RoleFreeze marks the ValidatingAdmissionPolicy, its binding, and the list of what is in flight.
	RoleFreeze = "freeze"
	// RoleGitOps marks the ConfigMap that keeps how what Argo CD and Flux reconcile was before it was suspended.
	RoleGitOps = "gitops"
	// AnnotationSuspended, on an Application of Argo CD, a Kustomization or a HelmRelease, is the migration that has suspended it.
	AnnotationSuspended = "replumb.dev/suspended"
	// RoleBackup marks a backup.
	RoleBackup = "backup"

	// AnnotationSchemaRevision, on a CustomResourceDefinition, counts the changes of its schema: a build leaves a definition alone
	// that has a higher one than its own.
	AnnotationSchemaRevision = "replumb.dev/schema-revision"

	// AnnotationCluster, on a Migration, is the cluster that it was recorded in: the UID of its namespace kube-system. Commands refuse a
	// Migration that has come from another one, such as by a restore.
	AnnotationCluster = "replumb.dev/cluster"
	// AnnotationSet, on a Migration, names the Migrations that move as one set with it, and itself, in their order, separated by commas. One
	// of them that has moved is no obstacle to the others.
	AnnotationSet = "replumb.dev/set"

	// AnnotationApprove, set by users on a Migration, is what they approve, separated by spaces or commas: plan:HASH, finish:TOKEN,
	// gate:NAME=ANSWER, losses:TOKEN and returned:TOKEN. The operator asks for it where the command line asks on a terminal.
	AnnotationApprove = "replumb.dev/approve"
	// AnnotationRequestedAt, on a Migration, is when a command asked the operator to go on (RFC 3339): what failed is tried again at once.
	AnnotationRequestedAt = "replumb.dev/requested-at"

	// AnnotationTier, set by users on a Service, is its tier.
	AnnotationTier = "replumb.dev/tier"
	// AnnotationStrategy, set by users on a Service, is how to treat it: pin, hop or etcd.
	AnnotationStrategy = "replumb.dev/strategy"
	// StrategyPin keeps a Service at its address, and the address legitimate.
	StrategyPin = "pin"
	// StrategyHop moves a Service that would be pinned since its address is known to be its identity, or kept from moving by a data
	// plane beside kube-proxy.
	StrategyHop = "hop"
	// StrategyEtcd moves a Service where API servers keep it, if the Migration says how etcd is reached.
	StrategyEtcd = "etcd"
	// AnnotationAPIServers, set by users on a Migration, says what replumb could not see from outside:
	// Repointed or Restored.
	AnnotationAPIServers = "replumb.dev/api-servers"
	// AnnotationDualWrite, set by users on a Migration, says with "Off" that no API server writes Service addresses into the bitmap of before
	// Kubernetes 1.33 any more, where replumb cannot see their feature gates.
	AnnotationDualWrite = "replumb.dev/dual-write"
	// AnnotationKubelets, set by users on a Migration, says that the kubelets that replumb has no right to ask give pods the cluster DNS
	// addresses that it names, and no others.
	AnnotationKubelets = "replumb.dev/kubelets"
	// AnnotationSingletons, set by users on a Migration, says with "Reviewed" that they have looked at what runs in both clusters of a
	// mirror.
	AnnotationSingletons = "replumb.dev/singletons"
	// LabelBreakGlass, set by users on a Service, lets changes to it through a freeze.
	LabelBreakGlass = "replumb.dev/break-glass"
	// AnnotationRestart, set by users on a Deployment, StatefulSet or DaemonSet, is how replumb restarts it.
	AnnotationRestart = "replumb.dev/restart"
	// RestartPods replaces its pods one by one, for owners that take rollouts of others back.
	RestartPods = "Pods"
	// RestartNever leaves it to its owner, and names its pods.
	RestartNever = "Never"
	// AnnotationRestartedAt, on a pod template, is when replumb restarted the workload (RFC 3339).
	AnnotationRestartedAt = "replumb.dev/restarted-at"

	// AnnotationService, on a bridge, is the name of the Service that it stands in for.
	AnnotationService = "replumb.dev/service"
	// AnnotationConnect, on a sentinel, has agents connect to it and to the pairs of addresses that it names, ADDRESS:PORT=ADDRESS:PORT
	// with commas between: where the first answers, the second has to.
	AnnotationConnect = "replumb.dev/connect"
	// AnnotationServiceUID, on a bridge and on what reserves an address, is the UID of that Service.
	AnnotationServiceUID = "replumb.dev/service-uid"
	// AnnotationOldIP, on a Service that moves, its bridge, and what reserves its address, is the ClusterIP it had before the migration.
	AnnotationOldIP = "replumb.dev/old-cluster-ip"
	// AnnotationTargetIP, on a Service that moves, its bridge, and what reserves its address, is the ClusterIP it moves to.
	AnnotationTargetIP = "replumb.dev/target-cluster-ip"
	// AnnotationOverlap, on what reserves an address, is the form in which the Service keeps that address itself.
	AnnotationOverlap = "replumb.dev/overlap"
	// AnnotationOriginalSpec, on a Service that moves, and what reserves its address, is the spec, as compact JSON, that the Service had
	// just before its latest hop.
	AnnotationOriginalSpec = "replumb.dev/original-spec"
	// AnnotationHeading, on what reserves an address, is the ClusterIP to which the Service is on its way by a hop: on what is noted of the
	// Service since before it left, on the reservation of the address that it has left until it has arrived.
	AnnotationHeading = "replumb.dev/heading"
	// AnnotationMovedAt, on a Service, is when it arrived at its present ClusterIP, forward or back (RFC 3339); on what reserves an
	// address, when the Service left that.
	AnnotationMovedAt = "replumb.dev/moved-at"
	// AnnotationAwaySince, on a Service that is on its way back, or back, is when it had got to its new ClusterIP (RFC 3339).
	AnnotationAwaySince = "replumb.dev/away-since"

	// AnnotationDisabledAt, on an address pool of Calico, is when replumb disabled it, or found that someone had (RFC 3339).
	AnnotationDisabledAt = "replumb.dev/disabled-at"
	// AnnotationReplicas, on a Deployment or StatefulSet that has no pods as long as it must not run in this cluster, is how many it has
	// when it runs.
	AnnotationReplicas = "replumb.dev/original-replicas"
	// AnnotationOneMore, on a Deployment that a migration gave one more pod, is the name of the migration, a slash, and how many it
	// had; on the Migration, all such Deployments with how many each had.
	AnnotationOneMore = "replumb.dev/one-more"

	// RoleLeaving marks a pod that leaves its Services before it ends, and the EndpointSlices that say so.
	RoleLeaving = "leaving"
	// AnnotationLeaving, on a pod that leaves its Services before it ends, is where it belonged and which labels it had, as JSON; on the
	// EndpointSlices that say so, the UID of the pod.
	AnnotationLeaving = "replumb.dev/leaving"
	// AnnotationHeld, on a Service that stands for a reserved address, is the address.
	AnnotationHeld = "replumb.dev/held"
	// AnnotationHeldFor, on a Service that stands for a reserved address, is the bridge that it is reserved for.
	AnnotationHeldFor = "replumb.dev/held-for"
	// AnnotationNoted, on what stands for a reserved address, says that it is not in the range of the API servers: no one can be given it, and
	// nothing else keeps it.
	AnnotationNoted = "replumb.dev/noted"
	// AnnotationForget, on a sentinel, are the addresses of pods that no datagrams may be sent to any more once a node has passed it,
	// separated by commas.
	AnnotationForget = "replumb.dev/forget"

	// RoleNode marks the ConfigMap that holds a Node for as long as the Node itself may be gone.
	RoleNode = "node"
	// AnnotationPodCIDRs, on a Node, are the ranges that it, or its CiliumNode, had before the migration, separated by commas.
	AnnotationPodCIDRs = "replumb.dev/original-pod-cidrs"
	// AnnotationCiliumAgent, on a Node, is the UID of the pod of Cilium's agent that was there before its range changed.
	AnnotationCiliumAgent = "replumb.dev/cilium-agent"
	// AnnotationReturning, on a Node that apply takes back to its former range since it could not go on there, says why.
	AnnotationReturning = "replumb.dev/returning"
	// AnnotationCiliumPool, on ConfigMap cilium-config, is what it named as the pool of Cilium's operator before the migration, as JSON.
	AnnotationCiliumPool = "replumb.dev/original-cilium-pool"
	// TaintMoving, on a Node, keeps pods away from it while its range changes. Its value is the Migration.
	TaintMoving = "replumb.dev/moving"
	// AnnotationCordoned, on a Node, says that it was replumb that made it unschedulable.
	AnnotationCordoned = "replumb.dev/cordoned"
	// AnnotationPodNetwork, on a Node that a migration of the network has switched (spec.cni, mode InPlace), is the network that its new pods
	// have.
	AnnotationPodNetwork = "replumb.dev/pod-network"
	// AnnotationBeside, on a pod template of a network's programs, is that they run beside another network (spec.cni, mode InPlace). Without
	// it they start again, as their manifests say.
	AnnotationBeside = "replumb.dev/beside"
	// LabelBeside, on a Node, lets the programs of a network that comes beside another one start there (spec.cni, mode InPlace): replumb starts
	// them on one node after the other. Its value is the network. No kubelet may set it on its own Node.
	LabelBeside = "replumb.dev.node-restriction.kubernetes.io/network-beside"
	// LabelKubeProxy, on a Node on which Cilium takes the place of kube-proxy (spec.cni.kubeProxy: Replace), says how far that is: beside,
	// leaving or replaced. Cilium's configuration and kube-proxy's DaemonSet go by it. No kubelet may set it on its own Node.
	LabelKubeProxy = "replumb.dev.node-restriction.kubernetes.io/kube-proxy"
	// ProxyBeside is a node on which both lead to Services.
	ProxyBeside = "beside"
	// ProxyLeaving is a node that kube-proxy has to leave.
	ProxyLeaving = "leaving"
	// ProxyReplaced is a node that is proven to be without kube-proxy.
	ProxyReplaced = "replaced"
	// LabelKubeProxyMode, on a Node whose kube-proxy is changed to another mode (spec.kubeProxy), says whose pod runs there: beside, leaving,
	// switched, returning or restored; where kube-proxy is a program of nodes, how far that is: restarting or switched. No kubelet may set it on its own Node.
	LabelKubeProxyMode = "replumb.dev.node-restriction.kubernetes.io/kube-proxy-mode"
	// ModeBeside is a node on which pods of the cluster's own DaemonSet and of replumb's run, in two modes.
	ModeBeside = "beside"
	// ModeLeaving is a node that the pod of the cluster's own DaemonSet has to leave.
	ModeLeaving = "leaving"
	// ModeSwitched is a node with rules of the new mode alone, written by the pod of replumb's DaemonSet or by the node's own program.
	ModeSwitched = "switched"
	// ModeRestarting is a node on which the owner of a kube-proxy that is a program restarts it in the other mode, while a copy of its rules leads.
	ModeRestarting = "restarting"
	// ModeReturning is a node on which pods of both DaemonSets run, in one mode.
	ModeReturning = "returning"
	// ModeRestored is a node that the pod of replumb's DaemonSet has to leave, with its rules.
	ModeRestored = "restored"
	// AnnotationAffinity, on the DaemonSet of kube-proxy, is the affinity that its pods had before replumb kept them off nodes, as JSON.
	AnnotationAffinity = "replumb.dev/original-affinity"
	// TaintLeaving, on a Node, keeps pods off it: it leaves the cluster, or a migration that is taken back no longer needs it. Its value is
	// the Migration.
	TaintLeaving = "replumb.dev/leaving"
	// AnnotationDrainedSince, on a Node, is when replumb began to empty it (RFC 3339).
	AnnotationDrainedSince = "replumb.dev/drained-since"
	// AnnotationTrafficPolicy, on a Service, is what replumb found there before it set externalTrafficPolicy Cluster, as JSON.
	AnnotationTrafficPolicy = "replumb.dev/original-traffic-policy"
	// AnnotationControllerManagers, set by users on a Migration, says what replumb could not see from outside: Paused,
	// Repointed or Restored.
	AnnotationControllerManagers = "replumb.dev/controller-managers"
	// AnnotationInstaller, set by users on a Migration, says what replumb could not see from outside: Ready, once nodes take new addresses of
	// pods for such, or Moved, once the installer's own configuration has the new range.
	AnnotationInstaller = "replumb.dev/installer"

	// LabelAgents, on a Node, says which agents of replumb may be there while its pods leave it: host or none. Without it both are.
	// No kubelet may set it on its own Node (NodeRestriction keeps labels of this domain from them), so no node gets out of the proof by itself.
	LabelAgents = "replumb.dev.node-restriction.kubernetes.io/agents"
	// LabelAgentsBefore, on a Node, is how that was called before, when every kubelet could set it. It says nothing any more.
	LabelAgentsBefore = "replumb.dev/agents"
	// AnnotationPodSecurity, on replumb's namespace, is what its labels of Pod Security were before replumb set others, as JSON.
	AnnotationPodSecurity = "replumb.dev/original-pod-security"
	// LabelTrial, on a Node that stands for no machine, says that it is there to show whether Nodes are given ranges. No kubelet may set it.
	LabelTrial = "replumb.dev.node-restriction.kubernetes.io/trial"
	// HostAgent has the one in the network of pods leave.
	HostAgent = "host"
	// NoAgents has both leave.
	NoAgents = "none"

	// LabelMirror, on an object in the target of a mirror, is the Migration that copied it. What has it is replumb's to change.
	LabelMirror = "replumb.dev/mirror"
	// AnnotationCopied, on a copy, tells what was copied, so that nothing is written twice.
	AnnotationCopied = "replumb.dev/copied"
	// AnnotationApplied, on an object of the manifests of a network that replaces another, is a hash of what was applied.
	AnnotationApplied = "replumb.dev/applied"
	// AnnotationSuspend, on a CronJob that is suspended as long as it must not run in this cluster, is what its spec.suspend is when it runs.
	AnnotationSuspend = "replumb.dev/original-suspend"
	// AnnotationSettled, on such a CronJob, says with "true" that its controller has seen that it is suspended, and that its status has
	// the latest run that was begun before.
	AnnotationSettled = "replumb.dev/settled"
	// AnnotationRunOnce, set by users on a Deployment, StatefulSet or CronJob, says with "true" that it must not run in two
	// clusters at once.
	AnnotationRunOnce = "replumb.dev/run-once"
	// AnnotationAddedNames, on a Certificate or Ingress, are the names that replumb added to what its certificate is for, as JSON.
	AnnotationAddedNames = "replumb.dev/added-names"

	// SystemNamespace holds what belongs to replumb and to no user's namespace.
	SystemNamespace = "replumb-system"
	// JournalNamespace holds the journals of migrations, and nothing else: they outlast SystemNamespace, and who may write them may
	// write no other ConfigMap.
	JournalNamespace = "replumb-journal"
	// LoadBalancerClass keeps every load-balancer controller away from bridges and sentinels.
	LoadBalancerClass = "replumb.dev/bridge"
	// FieldManager owns replumb's writes.
	FieldManager = "replumb"
)
