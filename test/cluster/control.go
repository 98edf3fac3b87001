package cluster

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/test/vm"
)

// prepareControl writes the files of the control plane and returns its programs.
func prepareControl(dir, binaries string, ca *authority, managerFlags []string) ([]program, error) {
	pki := filepath.Join(dir, "pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		return nil, fmt.Errorf("prepare control plane: %w", err)
	}
	files := map[string][]byte{"pki/ca.crt": ca.pem}
	serviceAccount, _, err := newKey()
	if err != nil {
		return nil, err
	}
	files["pki/service-account.pub"], files["pki/service-account.key"] = serviceAccount.cert, serviceAccount.key
	for name, s := range map[string]subject{
		"apiserver": {name: "kube-apiserver", hosts: []string{controlAddress, "127.0.0.1", apiServiceIP, "localhost",
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}},
		"supervisor":        {name: "supervisor", groups: []string{"system:masters"}},
		"apiserver-kubelet": {name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
	} {
		pair, err := ca.issue(s)
		if err != nil {
			return nil, err
		}
		files["pki/"+name+".crt"], files["pki/"+name+".key"] = pair.cert, pair.key
	}
	for name, s := range map[string]subject{
		adminKubeconfig:                 {name: "admin", groups: []string{"system:masters"}},
		"controller-manager.kubeconfig": {name: "system:kube-controller-manager"},
		"scheduler.kubeconfig":          {name: "system:kube-scheduler"},
	} {
		kubeconfig, err := ca.kubeconfig(s)
		if err != nil {
			return nil, err
		}
		files[name] = kubeconfig
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("prepare control plane: %w", err)
		}
	}
	return controlPrograms(dir, binaries, managerFlags), nil
}

func controlPrograms(dir, binaries string, managerFlags []string) []program {
	in := func(name string) string { return filepath.Join(dir, name) }
	run := func(name, ready string, args ...string) program {
		argv := append([]string{filepath.Join(binaries, name)}, args...)
		return program{Name: name, Program: vm.Program{Argv: argv, Env: rarelyCollected}, Ready: ready}
	}
	const etcd = "http://127.0.0.1:2379"
	return []program{
		run("etcd", etcd+"/health",
			"--data-dir="+in("etcd"), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
			"--listen-peer-urls=http://127.0.0.1:2380"),
		run("kube-apiserver", "https://127.0.0.1:6443/readyz",
			"--etcd-servers="+etcd, "--secure-port=6443", "--advertise-address="+controlAddress,
			"--service-cluster-ip-range="+serviceRange, "--allow-privileged=true",
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--client-ca-file="+in("pki/ca.crt"),
			"--tls-cert-file="+in("pki/apiserver.crt"), "--tls-private-key-file="+in("pki/apiserver.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file="+in("pki/service-account.pub"),
			"--service-account-signing-key-file="+in("pki/service-account.key"),
			"--kubelet-certificate-authority="+in("pki/ca.crt"),
			"--kubelet-client-certificate="+in("pki/apiserver-kubelet.crt"),
			"--kubelet-client-key="+in("pki/apiserver-kubelet.key"),
			"--kubelet-preferred-address-types=InternalIP"),
		run("kube-controller-manager", "https://127.0.0.1:10257/healthz", append([]string{
			"--kubeconfig=" + in("controller-manager.kubeconfig"), "--bind-address=127.0.0.1", "--leader-elect=false",
			"--root-ca-file=" + in("pki/ca.crt"),
			"--service-account-private-key-file=" + in("pki/service-account.key"), "--use-service-account-credentials",
			// The interval of the resync that finds claims whose PersistentVolume was recreated; 15 s by default.
			"--pvclaimbinder-sync-period=5s",
			// Otherwise it would create its default folder on this machine.
			"--flex-volume-plugin-dir=" + in("flexvolume")}, managerFlags...)...),
		run("kube-scheduler", "https://127.0.0.1:10259/healthz",
			"--kubeconfig="+in("scheduler.kubeconfig"), "--bind-address=127.0.0.1", "--leader-elect=false"),
	}
}

// rarelyCollected is the environment of Kubernetes' programs on this machine. Up to the limit, they collect garbage
// a quarter as often as by default, because memory is less scarce than time.
var rarelyCollected = []string{"GOGC=400", "GOMEMLIMIT=3GiB"}

const adminKubeconfig = "admin.kubeconfig"
