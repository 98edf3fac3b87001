package dataset

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// DefaultClass is the StorageClass of replicas whose volume names none.
const DefaultClass = "flexlvm-dataset"

// defaultRefresh is how often a source is checked again if refresh is only "true".
const defaultRefresh = 5 * time.Minute

// Source is a parsed VolumeConfig.
type Source struct {
	Type     flexlvmv1.SourceType
	URL      string   // argument of the loader; empty if nothing is loaded
	Flags    []string // of the loader; they determine what is loaded
	Access   []string // flags of the loader that determine only how the source is reached
	Include  []string // one glob for each replica, as in VCK, or none at all
	OrObject bool     // the slash at the end of URL was added: URL may also name one object
	Dir      string   // of the data, below the root of the volume; may be empty
	NFS      *corev1.NFSVolumeSource
	Shared   *sharedFrom
	Capacity resource.Quantity
	Class    string
	Endpoint string // the server, without its scheme; empty for the default of the type
	Eviction volume.EvictionPolicy

	Claim          string // that is copied; the loader mounts it read-only
	Secret         string // credentials; mounted by the loader, never read by the controller
	CAConfigMap    string // its key ca.crt holds the CA of the endpoint's certificate
	ServiceAccount string
	Checksum       string        // what loads verify; empty for the loader's default. Uploads have no such flag
	Timeout        time.Duration // 0: none
	Bandwidth      string        // bytes a second; empty: no limit
	Stream         bool
	StreamAfter    string
	StreamIgnored  bool     // stream was set and has no effect, see readStream
	Refresh        schedule // when changes are fetched; nil: never
	OutputURL      string
	Mirror         bool          // changes are uploaded, to OutputURL or to the source
	Displaceable   bool          // another dataset may displace this one while no pod reads it
	Displaces      bool          // it may displace such datasets
	Peers          string        // Secret with the token for copying replicas from each other; empty: never
	SourceLoaders  int           // how many loaders may ask the source at the same time, with Peers; 0: any number
	Grace          time.Duration // how long a replica stays on a node that does not match nodeAffinity
}

// Writable reports whether consumers write. They then use the claim of the only replica directly.
func (s Source) Writable() bool {
	return s.Type == flexlvmv1.SourceS3Dev || s.Type == flexlvmv1.SourceAeon || s.Mirror
}

// Target returns the URL that the content of a volume is uploaded to.
func (s Source) Target() string {
	if s.OutputURL == "" && s.Mirror {
		return s.URL
	}
	return s.OutputURL
}

// Copies reports whether there are replicas on nodes at all.
func (s Source) Copies() bool {
	return s.Type != flexlvmv1.SourceNFS && s.Type != flexlvmv1.SourceShared
}

// Load identifies the content of a replica; a replica with another Load is outdated. The server is part of it,
// because another server has other data.
func (s Source) Load(index int) string {
	parts := []any{s.URL, s.Flags, s.Dir, s.include(index)}
	if s.Endpoint != "" {
		parts = append(parts, s.Endpoint)
	}
	return digest(parts...)
}

func (s Source) include(index int) []string {
	if index < len(s.Include) {
		return []string{"--path=" + s.Include[index]}
	}
	return nil
}

// digest returns a short hash of parts, to tell whether they have changed.
func digest(parts ...any) string {
	text, err := json.Marshal(parts)
	if err != nil {
		panic(err) // only strings and the like are passed
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16]
}

// Options that several sources have.
var (
	optionsOfReads = []string{"evictionPolicy", "storageClass", "dataPath", "nodeAffinityGrace"}
	optionsOfAll   = slices.Concat(optionsOfReads, []string{"outputURL"})
	optionsOfLoads = []string{"timeoutForDataDownload", "include", "exclude", "parallel", "bandwidth", "caConfigMap", "stream", "streamAfter", "distributionStrategy", "refresh", "refreshTimeZone", "checksum", "displaceable", "displaces", "peersSecretName", "sourceLoaders"}
)

// A sourceKind is what is specific to a sourceType.
type sourceKind struct {
	options []string
	// read reads the options into s.
	read func(s *Source, v flexlvmv1.VolumeConfig, options map[string]string) error
	// loaded: the loader fills the volumes.
	loaded bool
}

// sources are all types of sources. A new type needs a row here, its constant in api/v1 and a source of the
// loader.
var sources = map[flexlvmv1.SourceType]sourceKind{
	flexlvmv1.SourceS3:        {slices.Concat(optionsOfAll, optionsOfLoads, optionsOfS3), (*Source).readS3, true},
	flexlvmv1.SourceS3Dev:     {slices.Concat(optionsOfAll, optionsOfLoads, optionsOfS3), (*Source).readS3, true},
	flexlvmv1.SourcePachyderm: {slices.Concat(optionsOfAll, optionsOfLoads, optionsOfPachyderm), (*Source).readPachyderm, true},
	flexlvmv1.SourceHTTP:      {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfHTTP), (*Source).readHTTP, true},
	flexlvmv1.SourceHub:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfHub), (*Source).readHub, true},
	flexlvmv1.SourceOCI:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfOCI), (*Source).readOCI, true},
	flexlvmv1.SourcePVC:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfPVC), (*Source).readPVC, true},
	flexlvmv1.SourceGCS:       {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfClouds), (*Source).readGCS, true},
	flexlvmv1.SourceAzure:     {slices.Concat(optionsOfReads, optionsOfLoads, optionsOfClouds), (*Source).readAzure, true},
	flexlvmv1.SourceNFS:       {[]string{"server", "path", "dataPath"}, (*Source).readNFS, false},
	flexlvmv1.SourceShared:    {optionsOfShared, (*Source).readShared, false},
	flexlvmv1.SourceAeon:      {slices.Concat(optionsOfAll, optionsOfAeon), (*Source).readAeon, false},
}

// check rejects options of other sources, and passwords in addresses. It leaves resync to readResync, which has
// its own message.
func (k sourceKind) check(v flexlvmv1.VolumeConfig, options map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains(k.options, key) && key != "resync" {
			return fmt.Errorf("option %q does not belong to sourceType %s; remove it, or write one of %s", key, v.SourceType, strings.Join(k.options, ", "))
		}
	}
	if len(v.Labels) == 0 {
		return fmt.Errorf("labels cannot be empty; give the volume at least one, such as dataset: NAME")
	}
	return checkAddresses(v, options)
}

// ParseSource parses a volume. The error states what is wrong and what to write instead.
func ParseSource(v flexlvmv1.VolumeConfig) (Source, error) {
	options := optionsOf(v)
	kind, known := sources[v.SourceType]
	if !known {
		return Source{}, fmt.Errorf("sourceType %q is not known; it is one of %s", v.SourceType, sourceTypes())
	}
	if err := kind.check(v, options); err != nil {
		return Source{}, err
	}
	s := Source{
		Type: v.SourceType, Class: DefaultClass,
		Secret: options["awsCredentialsSecretName"], CAConfigMap: options["caConfigMap"], ServiceAccount: options["serviceAccountName"],
		OutputURL: options["outputURL"],
	}
	if class := options["storageClass"]; class != "" {
		s.Class = class
	}
	anonymous, err := boolean(options, "anonymous")
	if err != nil {
		return Source{}, err
	}
	options["anonymous"] = strconv.FormatBool(anonymous)
	if s.Capacity, err = resource.ParseQuantity(v.Capacity); err != nil {
		return Source{}, fmt.Errorf("parse capacity %q: %w", v.Capacity, err)
	}
	if s.Eviction, err = volume.ParseEvictionPolicy("evictionPolicy", options["evictionPolicy"]); err != nil {
		return Source{}, err
	}
	if err = s.readResync(v.Replicas, options); err != nil {
		return Source{}, err
	}
	if err = s.checkAll(v, options); err != nil { // after readResync, which determines whether consumers may write
		return Source{}, err
	}
	if err = s.checkOutput(options); err != nil {
		return Source{}, err
	}
	if err = s.readGrace(options["nodeAffinityGrace"]); err != nil {
		return Source{}, err
	}
	if s.Writable() && s.Eviction != volume.EvictNever {
		return Source{}, fmt.Errorf("evictionPolicy %s: what consumers write to a volume of sourceType %s is nowhere else; use Never", s.Eviction, s.Type)
	}
	if err := kind.read(&s, v, options); err != nil {
		return Source{}, err
	}
	if !kind.loaded {
		return s, nil
	}
	if s.Endpoint == "" {
		s.Endpoint = protocol.EndpointOf(options["endpointURL"])
	}
	s.Flags = append(s.Flags, flagsOf(options, contentFlags)...)
	s.Access = append(s.Access, flagsOf(options, accessFlags)...)
	return s, s.readLoading(v.Replicas, options)
}

// optionsOf returns the options of a volume. KVC had endpointURL as a field.
func optionsOf(v flexlvmv1.VolumeConfig) map[string]string {
	out := map[string]string{}
	for key, value := range v.Options {
		out[key] = string(value)
	}
	if v.EndpointURL != "" {
		out["endpointURL"] = v.EndpointURL
	}
	return out
}

// sourceTypes returns the names of all types.
func sourceTypes() string {
	var out []string
	for _, t := range slices.Sorted(maps.Keys(sources)) {
		out = append(out, string(t))
	}
	return strings.Join(out, ", ")
}

// Options and the flags of the loader that they set.
var (
	contentFlags = [][2]string{{"versionID", "--version-id"}, {"include", "--include"}, {"exclude", "--exclude"}}
	accessFlags  = [][2]string{{"endpointURL", "--endpoint"}, {"region", "--region"}, {"addressStyle", "--address-style"}, {"parallel", "--parallel"}}
)

func flagsOf(options map[string]string, table [][2]string) []string {
	var out []string
	for _, row := range table {
		if value := options[row[0]]; value != "" {
			out = append(out, row[1]+"="+value)
		}
	}
	return out
}

// checksumFlags determine what loads verify.
func (s Source) checksumFlags() []string {
	if s.Checksum == "" {
		return nil
	}
	return []string{"--checksum=" + s.Checksum}
}

// readLoading reads the options of loading.
func (s *Source) readLoading(replicas flexlvmv1.ReplicaCount, options map[string]string) error {
	if text := options["timeoutForDataDownload"]; text != "" {
		timeout, err := time.ParseDuration(text)
		if err == nil && timeout <= 0 {
			err = fmt.Errorf("%s is not more than 0", timeout)
		}
		if err != nil {
			return fmt.Errorf("error while parsing timeout for data download: %w", err)
		}
		s.Timeout = timeout
	}
	if err := s.readStream(options); err != nil {
		return err
	}
	s.Bandwidth, s.Checksum = options["bandwidth"], options["checksum"]
	if err := checkBounds(options); err != nil {
		return err
	}
	if err := s.readDisplacing(options); err != nil {
		return err
	}
	if err := s.readRefresh(options["refresh"], options["refreshTimeZone"]); err != nil {
		return err
	}
	if err := s.readPeers(options); err != nil {
		return err
	}
	return s.readDistribution(replicas, options)
}

// readDistribution assigns each replica its glob: the globs in order, each as often as its count.
func (s *Source) readDistribution(replicas flexlvmv1.ReplicaCount, options map[string]string) error {
	text := options["distributionStrategy"]
	if text == "" {
		return nil
	}
	counts := map[string]int{}
	if err := json.Unmarshal([]byte(text), &counts); err != nil {
		return fmt.Errorf("invalid distributionStrategy [%s] specified, it must be a map[string]int", text)
	}
	if options["include"] != "" {
		return fmt.Errorf("distributionStrategy and include both say what to load; use one of them")
	}
	total := 0
	for _, glob := range slices.Sorted(maps.Keys(counts)) {
		// Each count is checked alone, so that the sum cannot overflow.
		if count := counts[glob]; count < 0 || count > int(replicas) {
			total = count
			break
		}
		total += counts[glob]
		s.Include = append(s.Include, slices.Repeat([]string{glob}, counts[glob])...)
	}
	if key, isS3 := strings.CutPrefix(s.URL, "s3://"); isS3 && strings.Contains(key, "/") && single(key) {
		s.URL += "/" // VCK listed what is below it, or used the object with that name
		s.OrObject = !s.Mirror
	}
	if total != int(replicas) {
		return fmt.Errorf("total number of replicas: [%s] in distributionStrategy [%s], does not match number of replicas provided: [%d]",
			strconv.Itoa(total), text, replicas)
	}
	return nil
}
