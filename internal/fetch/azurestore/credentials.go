package azurestore

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// keys are an account's credentials.
type keys struct {
	account, dir string
	anonymous    bool
	tokens       oauth2.TokenSource // nil without a workload identity
}

// sign adds the account's credentials: a signature by its key, a shared access token, or the token of
// an identity. Files are read each time, because the kubelet replaces them.
func (k keys) sign(request *http.Request) error {
	if k.anonymous {
		return nil
	}
	key, sas := os.Getenv("AZURE_STORAGE_KEY"), os.Getenv("AZURE_STORAGE_SAS_TOKEN")
	if k.dir != "" {
		var err error
		if key, err = web.Secret(k.dir, "accountKey"); err != nil {
			return err
		}
		if sas, err = web.Secret(k.dir, "sasToken"); err != nil {
			return err
		}
	}
	switch {
	case key != "":
		return k.signKey(request, key)
	case sas != "":
		if request.URL.RawQuery != "" {
			request.URL.RawQuery += "&"
		}
		request.URL.RawQuery += strings.TrimPrefix(sas, "?")
		return nil
	case k.dir != "":
		return fmt.Errorf("%w: --credentials-dir lacks accountKey or sasToken", store.ErrNoCredentials)
	case k.tokens != nil:
		return k.signToken(request)
	}
	return fmt.Errorf("%w: give --credentials-dir or --anonymous", store.ErrNoCredentials)
}

// signKey signs a request without a body with the account's key (Shared Key).
func (k keys) signKey(request *http.Request, key string) error {
	secret, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		return fmt.Errorf("%w: accountKey is not in base64", store.ErrNoCredentials)
	}
	request.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte(canonical(request, k.account))) // hashes do not fail
	request.Header.Set("Authorization", "SharedKey "+k.account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return nil
}

// canonical returns the string to sign for a request.
func canonical(request *http.Request, account string) string {
	h := request.Header
	lines := []string{request.Method, h.Get("Content-Encoding"), h.Get("Content-Language"), "", h.Get("Content-MD5"), h.Get("Content-Type"), "",
		h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"), h.Get("If-Unmodified-Since"), h.Get("Range")}
	named := map[string]string{}
	for name := range h {
		if low := strings.ToLower(name); strings.HasPrefix(low, "x-ms-") {
			named[low] = strings.TrimSpace(h.Get(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		lines = append(lines, name+":"+named[name])
	}
	lines = append(lines, "/"+account+request.URL.EscapedPath())
	query := map[string][]string{}
	for name, values := range request.URL.Query() {
		query[strings.ToLower(name)] = append(query[strings.ToLower(name)], values...)
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		slices.Sort(query[name])
		lines = append(lines, name+":"+strings.Join(query[name], ","))
	}
	return strings.Join(lines, "\n")
}

// signToken adds the token of a workload identity.
func (k keys) signToken(request *http.Request) error {
	token, err := k.tokens.Token()
	if err != nil {
		return web.TokenError(err)
	}
	token.SetAuthHeader(request)
	return nil
}

// assertion is a source of tokens that presents the federated token, which the kubelet keeps fresh in a
// file.
type assertion struct {
	ctx    context.Context
	file   string
	config clientcredentials.Config
}

// Token implements oauth2.TokenSource.
func (a assertion) Token() (*oauth2.Token, error) {
	text, err := os.ReadFile(a.file)
	if err != nil {
		return nil, fmt.Errorf("%w: read AZURE_FEDERATED_TOKEN_FILE: %w", store.ErrNoCredentials, err)
	}
	asked := a.config
	asked.EndpointParams = url.Values{
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
		"client_assertion":      {strings.TrimSpace(string(text))},
	}
	return asked.Token(a.ctx)
}

// identity returns the workload identity of a pod, as Azure's webhook describes it in the environment;
// nil if there is none.
func identity(config web.Config) (oauth2.TokenSource, error) {
	client, tenant, file := os.Getenv("AZURE_CLIENT_ID"), os.Getenv("AZURE_TENANT_ID"), os.Getenv("AZURE_FEDERATED_TOKEN_FILE")
	if client == "" || tenant == "" || file == "" {
		return nil, nil
	}
	transport, err := web.NewTransport(true, config.CAFile, 0)
	if err != nil {
		return nil, err
	}
	host := cmp.Or(os.Getenv("AZURE_AUTHORITY_HOST"), "https://login.microsoftonline.com/")
	return oauth2.ReuseTokenSource(nil, assertion{
		// The source outlives the request that needs it first.
		ctx:  context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: transport, Timeout: config.Stall}),
		file: file,
		config: clientcredentials.Config{
			ClientID: client, TokenURL: strings.TrimRight(host, "/") + "/" + url.PathEscape(tenant) + "/oauth2/v2.0/token",
			Scopes: []string{"https://storage.azure.com/.default"}, AuthStyle: oauth2.AuthStyleInParams,
		},
	}), nil
}
