package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	system  = "flexlvm-system"
	account = "flexlvm-provisioner"
	space   = "bench" // namespace of the claims
	longest = 20 * time.Minute
)

// bed is an API server with the shipped manifests applied. The scheduler and the controller manager run only while
// placement is measured: the other figures do not depend on them, and they would only take processor time from both
// sides.
type bed struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface // an administrator's, without a rate limit
	storage *kube.Client
	plain   kubernetes.Interface // with the provisioner's rights, flags and encoding
	classes []string
	arrived *arrivals
	gone    *arrivals
	blind   context.CancelFunc // ends the watch of arrivals

	dir         string
	binary      string
	command     []string // subcommand of the program, unless it is the main one
	flags       []string // further flags of the provisioner, beside the required ones
	kubeconfig  string   // of the provisioner's service account
	environment []string // of the provisioner, from the shipped manifest
	log         io.Writer
}

// start starts everything except the provisioner. binary is the provisioner's program, dir the folder for its
// files.
func start(ctx context.Context, binary, dir string, log io.Writer) (_ *bed, err error) {
	source, err := vm.SourceDir()
	if err != nil {
		return nil, err
	}
	b := &bed{binary: binary, dir: dir, log: log, classes: []string{"flexlvm", "second"}}
	b.cluster, err = cluster.Start(ctx, cluster.Config{Name: fmt.Sprintf("bench-%d", os.Getpid()), ControlPlaneOnly: true, Log: log,
		ControllerManagerFlags: []string{"--node-monitor-grace-period=24h"}}) // the nodes have no kubelets
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop())
		}
	}()
	if err := b.clients(); err != nil {
		return nil, err
	}
	if _, err := b.cluster.Kubectl(ctx, "apply", "-k", filepath.Join(source, "installer")); err != nil {
		return nil, err
	}
	if err := b.cluster.Established(ctx); err != nil {
		return nil, err
	}
	for _, idle := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := b.cluster.Kill(ctx, idle); err != nil {
			return nil, err
		}
	}
	if err := b.account(ctx, account); err != nil {
		return nil, err
	}
	if err := b.objects(ctx); err != nil {
		return nil, err
	}
	watching, blind := context.WithCancel(ctx)
	b.blind = blind
	b.arrived, b.gone, err = watchArrivals(watching, b.client)
	return b, err
}

func (b *bed) stop() error {
	if b.blind != nil {
		b.blind()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return b.cluster.Stop(ctx)
}

func (b *bed) clients() error {
	config, err := clientcmd.BuildConfigFromFlags("", b.cluster.AdminKubeconfig())
	if err != nil {
		return fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	config.Dial, config.QPS = b.cluster.Dial, -1
	if b.storage, err = kube.NewClient(config); err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	b.client, err = kubernetes.NewForConfig(config)
	return err
}

// account writes the kubeconfig of a provisioner's service account and creates the plain client, with the same
// rights and rate limits.
func (b *bed) account(ctx context.Context, account string) error {
	b.kubeconfig = filepath.Join(b.dir, "account.kubeconfig")
	if err := b.cluster.AccountKubeconfig(ctx, system, account, b.kubeconfig); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig of %s: %w", account, err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.Dial, config.QPS, config.Burst = b.cluster.Dial, defaultQPS, defaultBurst
	b.plain, err = kubernetes.NewForConfig(config)
	return err
}

// objects creates what the claims need: a namespace, its service account, which the controller manager would
// otherwise create, and another class.
func (b *bed) objects(ctx context.Context) error {
	shipped, err := b.client.AppsV1().Deployments(system).Get(ctx, "flexlvm-provisioner", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, e := range shipped.Spec.Template.Spec.Containers[0].Env {
		b.environment = append(b.environment, e.Name+"="+e.Value)
	}
	_, err = b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = b.client.CoreV1().ServiceAccounts(space).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	class, err := b.client.StorageV1().StorageClasses().Get(ctx, b.classes[0], metav1.GetOptions{})
	if err != nil {
		return err
	}
	class.ObjectMeta = metav1.ObjectMeta{Name: b.classes[1]}
	_, err = b.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// offered returns the number of classes that every node offers: the bench's and the other shipped ones.
func (b *bed) offered(ctx context.Context) (int, error) {
	all, err := b.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	ours := 0
	for _, class := range all.Items {
		if class.Provisioner == pv.Provisioner {
			ours++
		}
	}
	return ours, nil
}
