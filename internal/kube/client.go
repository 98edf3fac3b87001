package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// defaultTimeout limits one request if the configuration does not: an API server that does not answer
// in time counts as unavailable. Watches are not limited.
const defaultTimeout = 15 * time.Second

// A Client reads and writes the objects that the node daemon and the provisioner need. Every read goes
// to the API server, not to a cache. Errors are client-go's, to be examined with apierrors.
type Client struct {
	core    rest.Interface
	flexlvm rest.Interface
	timeout time.Duration
	// decoder decodes pages of lists; pages admits one page into memory at a time.
	decoder runtime.Decoder
	pages   *semaphore.Weighted
}

// NewClient returns a client. It does not change config.
func NewClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("create the API client: %w", err)
	}
	if err := flexlvmv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("create the API client: %w", err)
	}
	bound := config.Timeout
	if bound <= 0 {
		bound = defaultTimeout
	}
	config = rest.CopyConfig(config)
	config.Timeout = 0 // it would end watches, too
	// One connection for both groups.
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create the API client: %w", err)
	}
	factory := serializer.NewCodecFactory(scheme)
	codecs := factory.WithoutConversion()
	core, err := groupClient(config, transport, codecs, "/api", corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf)
	if err != nil {
		return nil, err
	}
	flexlvm, err := groupClient(config, transport, codecs, "/apis", flexlvmv1.GroupVersion, runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	return &Client{core: core, flexlvm: flexlvm, timeout: bound, decoder: factory.UniversalDeserializer(), pages: semaphore.NewWeighted(1)}, nil
}

// groupClient returns the client for one API group.
func groupClient(config *rest.Config, transport *http.Client, codecs runtime.NegotiatedSerializer, path string, gv schema.GroupVersion, contentType string) (*rest.RESTClient, error) {
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion, c.NegotiatedSerializer = path, &gv, codecs
	c.ContentType, c.AcceptContentTypes = contentType, contentType+",application/json"
	client, err := rest.RESTClientForConfigAndClient(c, transport)
	if err != nil {
		return nil, fmt.Errorf("create the API client for %s: %w", gv, err)
	}
	return client, nil
}

// Cluster returns the UID that identifies the cluster.
func (c *Client) Cluster(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return ClusterUID(ctx, c.core)
}

// do sends a request and decodes the response into out, which may be nil. It sends the request once:
// the library's ten tries would take as many seconds, and callers retry anyway.
func (c *Client) do(ctx context.Context, what string, request *rest.Request, out runtime.Object) error {
	if err := c.send(ctx, request.MaxRetries(0), out); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, request *rest.Request, out runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	result := request.Do(ctx)
	if err := result.Error(); err != nil || out == nil {
		return err
	}
	return result.Into(out)
}

// Node returns a node.
func (c *Client) Node(ctx context.Context, name string) (*corev1.Node, error) {
	out := &corev1.Node{}
	return out, c.do(ctx, "get node "+name, c.core.Get().Resource("nodes").Name(name), out)
}

// NodeLabels returns a node's labels. It reads only the metadata of the Node, whose status is large.
func (c *Client) NodeLabels(ctx context.Context, name string) (map[string]string, error) {
	out := metav1.PartialObjectMetadata{}
	err := c.metadata(ctx, "get the labels of node "+name, c.core.Get().Resource("nodes").Name(name), "PartialObjectMetadata", &out)
	return out.Labels, err
}

// NodeMetadata lists the metadata of the nodes that options select.
func (c *Client) NodeMetadata(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	out := &metav1.PartialObjectMetadataList{}
	request := c.core.Get().Resource("nodes").VersionedParams(&options, metav1.ParameterCodec)
	return out, c.metadata(ctx, "list the metadata of nodes", request, "PartialObjectMetadataList", out)
}

// PersistentVolumeClaim returns a claim.
func (c *Client) PersistentVolumeClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	out := &corev1.PersistentVolumeClaim{}
	request := c.core.Get().Namespace(namespace).Resource("persistentvolumeclaims").Name(name)
	return out, c.do(ctx, fmt.Sprintf("get claim %s/%s", namespace, name), request, out)
}

// NodeStorage returns a node's NodeStorage.
func (c *Client) NodeStorage(ctx context.Context, name string) (*flexlvmv1.NodeStorage, error) {
	out := &flexlvmv1.NodeStorage{}
	return out, c.do(ctx, "get NodeStorage "+name, c.flexlvm.Get().Resource("nodestorages").Name(name), out)
}

// VolumeManager returns only the metadata of a VolumeManager.
func (c *Client) VolumeManager(ctx context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	out := &metav1.PartialObjectMetadata{}
	request := c.flexlvm.Get().Namespace(namespace).Resource(replica.OwnerPlural).Name(name)
	return out, c.metadata(ctx, fmt.Sprintf("get VolumeManager %s/%s", namespace, name), request, "PartialObjectMetadata", out)
}

// metadata reads only the metadata of the requested objects, as a kind of metav1.
func (c *Client) metadata(ctx context.Context, what string, request *rest.Request, kind string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request = request.MaxRetries(0).SetHeader("Accept", "application/json;as="+kind+";g=meta.k8s.io;v=v1")
	body, err := request.Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// VolumeGroups lists all VolumeGroups, as of some moment after the call.
func (c *Client) VolumeGroups(ctx context.Context) ([]flexlvmv1.VolumeGroup, error) {
	out := &flexlvmv1.VolumeGroupList{}
	err := c.do(ctx, "list VolumeGroups", c.flexlvm.Get().Resource("volumegroups"), out)
	return out.Items, err
}

// VolumeDiscovery returns the VolumeDiscovery.
func (c *Client) VolumeDiscovery(ctx context.Context) (*flexlvmv1.VolumeDiscovery, error) {
	out := &flexlvmv1.VolumeDiscovery{}
	request := c.flexlvm.Get().Resource("volumediscoveries").Name(flexlvmv1.VolumeDiscoveryName)
	return out, c.do(ctx, "get VolumeDiscovery "+flexlvmv1.VolumeDiscoveryName, request, out)
}

// CreateNodeStorage creates a node's NodeStorage and returns the result.
func (c *Client) CreateNodeStorage(ctx context.Context, s *flexlvmv1.NodeStorage) (*flexlvmv1.NodeStorage, error) {
	out := &flexlvmv1.NodeStorage{}
	return out, c.do(ctx, "create NodeStorage "+s.Name, c.flexlvm.Post().Resource("nodestorages").Body(s), out)
}

// UpdateNodeStorageStatus writes the status of s, if s is up to date.
func (c *Client) UpdateNodeStorageStatus(ctx context.Context, s *flexlvmv1.NodeStorage) (*flexlvmv1.NodeStorage, error) {
	out := &flexlvmv1.NodeStorage{}
	request := c.flexlvm.Put().Resource("nodestorages").Name(s.Name).SubResource("status").Body(s)
	return out, c.do(ctx, "write the status of NodeStorage "+s.Name, request, out)
}
